"""Callbacks: code that runs at fixed points of a training."""

from trackside.callbacks.base import Callback, CallbackConfig, CallbackList

__all__ = ["Callback", "CallbackConfig", "CallbackList"]
