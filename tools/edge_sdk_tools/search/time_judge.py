"""Whether INT8 takes longer than FP32.

By the board's counted instructions where something counts them, else by this machine's clock.
"""

from __future__ import annotations

import platform

from edge_sdk_tools.convert import Converted
from edge_sdk_tools.prove import Proof
from edge_sdk_tools.quantize import Recipe
from edge_sdk_tools.search.setting import Setting
from edge_sdk_tools.search.shortfall import BoardTimes, Shortfall, shortfall_of


class TimeJudge:
    """Judges the trials of one search; the board's times of a model without float layers are counted once.

    Args:
        setting: of the search.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._whole: BoardTimes | None = None
        self._is_counted = False

    def judge(self, proof: Proof, recipe: Recipe, converted: Converted) -> tuple[Shortfall | None, BoardTimes | None]:
        """What keeps a model from its gates, and its times on the board; None where nothing counted them.

        Args:
            proof: of the model.
            recipe: how it was quantized.
            converted: its file.
        """
        gates = self._setting.spec.gates
        elsewhere = self._setting.target.machine != platform.machine()
        if not recipe.float_nodes:
            board = self._of_whole(converted)
            return shortfall_of(proof, gates, board=board, elsewhere=elsewhere), board
        shortfall = shortfall_of(proof, gates, elsewhere=elsewhere)
        if self._whole is None or not (shortfall is None or shortfall.kind == "slow"):
            return shortfall, None
        # Counting takes its time, so that only a model that may be carried is worth it.
        board = self._counted(converted, self._whole.fp32_ms)
        return shortfall_of(proof, gates, board=board, elsewhere=elsewhere), board

    def _of_whole(self, converted: Converted) -> BoardTimes | None:
        """Other ranges take the same time."""
        if not self._is_counted:
            self._is_counted = True
            fp32 = self._setting.board(self._setting.simplified.path)
            self._whole = self._counted(converted, fp32.latency_ms) if fp32 else None
        return self._whole

    def _counted(self, converted: Converted, fp32_ms: float) -> BoardTimes | None:
        int8 = self._setting.board(converted.model)
        return BoardTimes(int8.core, int8.latency_ms, fp32_ms, int8.million_instructions) if int8 else None
