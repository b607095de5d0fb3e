"""Plain nn.Modules: they run without Lightning."""
