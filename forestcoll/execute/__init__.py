"""Engines that run programs: `cpu` on this machine's threads."""
