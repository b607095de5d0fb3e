"""Models, written as plain `nn.Module`s that do not depend on Lightning."""
