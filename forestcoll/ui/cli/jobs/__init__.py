"""The command of jobs, whose groups share a fabric: `layout`."""
