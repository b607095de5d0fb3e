"""Models, which are plain `nn.Module`s and do not depend on Lightning."""
