"""What stock NCCL and RCCL can be told: spanning trees of equal shares, rings on rails."""
