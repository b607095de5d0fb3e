"""What init_project.py and update_project.py do. Standard library only; ruff is used where it is installed."""
