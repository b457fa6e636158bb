"""What people see: tables, progress, and words for numbers and cuts."""
