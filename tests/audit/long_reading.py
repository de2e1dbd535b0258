"""The long search over readers: `python -m tests.audit.long_reading`, a part of `make audit`.

More neighbouring files, frames, images and vectors than in the tests, from a fresh seed, which is printed.
Ends with exit code 1 if a record changed another, and prints the case that did.
"""

from __future__ import annotations

import secrets
import sys

from tests.audit.reading import product_reading
from tests.audit.reading_inputs import product_input_reading

CASES, INPUTS = 1500, 200  # of each form: tables, and images or vectors


def main() -> None:
    """Search all forms."""
    seed = int(sys.argv[1]) if sys.argv[1:] else secrets.randbelow(1 << 32)
    print(f"seed {seed}", flush=True)
    findings = [*product_reading(CASES, seed), *product_input_reading(INPUTS, seed)]
    for finding in findings:
        print(f"{finding.mechanism}: {finding.verdict}; {finding.note}")
    sys.exit(any(not finding.passed for finding in findings))


if __name__ == "__main__":
    main()
