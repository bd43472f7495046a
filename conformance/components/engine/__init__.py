"""Engines that own the backward pass and the optimizer's step."""
