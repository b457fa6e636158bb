"""What readers of several formats share: settings, boxes, fabrics, doubts, what dumps leave out."""
