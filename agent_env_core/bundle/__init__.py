"""A bundle folder on disk, read and checked. Pure: reads files, touches nothing else."""
