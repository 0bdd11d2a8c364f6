"""Ask a robot at work, with the `openai` package: the question is answered on what the robot sees now.

pip install openai
python examples/ask.py "what are you doing?" --session arm-1
"""

from __future__ import annotations

import argparse
import sys

from openai import APIError, OpenAI


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default="what are you doing?")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--session", help="name of the robot; not needed when only one is connected")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    try:
        ask(OpenAI(base_url=args.url, api_key=args.api_key), args.question, args.session)
    except APIError as error:
        said = error.body.get("message") if isinstance(error.body, dict) else None
        print(f"ask: {said or error.message}", file=sys.stderr)
        return 1
    return 0


def ask(client: OpenAI, question: str, session: str | None) -> None:
    """Print the answer as it comes. Raises openai's APIError when there is none."""
    stream = client.chat.completions.create(
        model="oxygen",
        messages=[{"role": "user", "content": question}],
        max_tokens=64,
        stream=True,
        extra_body={"session": session} if session else {},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        details = getattr(chunk, "oxygen", None)
        if details:
            print(f"\n(about frame {details['frame_id']}, {details['age_frames']} frames old)")


if __name__ == "__main__":
    sys.exit(main())
