"""The command line, reports, pictures, exports."""
