"""coplace in Python: the verbs of the command, in your own process.

>>> import coplace
>>> answer = coplace.evaluate("opt-350m", chip="h100", fabric="nvlink4_node", devices=4, global_batch=8)
>>> answer.result.time.step_s > 0
True
"""

from coplace._answers import Answer, Record, Table, table
from coplace._asking import BatchInterrupted, Question, batch
from coplace._choosing import Choice, choose
from coplace._core import __version__
from coplace._errors import CoplaceError, CoplaceWarning
from coplace._figures import Figure, InteractiveFigure
from coplace._inputs import Chip, Fabric, Model, Stack, Study
from coplace.verbs import *  # noqa: F403
from coplace.verbs import __all__ as _verbs

__all__ = [
    "Answer",
    "BatchInterrupted",
    "Chip",
    "Choice",
    "CoplaceError",
    "CoplaceWarning",
    "Fabric",
    "Figure",
    "InteractiveFigure",
    "Model",
    "Question",
    "Record",
    "Stack",
    "Study",
    "Table",
    "__version__",
    "batch",
    "choose",
    "table",
]
__all__ += _verbs
