"""Finds a user's mistakes before anything starts: no engine, no Ray, no model is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slime_rl.buffer.dataset import Selection, load_held_out, read_sources
from slime_rl.buffer.packing import packing_of
