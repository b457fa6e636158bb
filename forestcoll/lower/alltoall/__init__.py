"""lower.alltoall"""
