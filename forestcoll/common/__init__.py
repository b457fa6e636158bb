"""What every room stands on: errors, limits on input, arguments, text files."""
