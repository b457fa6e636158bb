"""Compile: topology, collective and wishes in, forest and plan files out, each checked."""
