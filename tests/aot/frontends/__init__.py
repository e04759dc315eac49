"""Tests of entry points: functions, modules, export, `torch.compile`."""
