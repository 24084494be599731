"""The page that shows jobs to people. Needs onceward[web]."""
