"""The source as the job's driver runs it: arguments, checks, planning of ranges, positions."""
