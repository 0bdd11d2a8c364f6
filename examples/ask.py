"""Ask a robot at work, with the `openai` package: the question is answered on what the robot sees now.

python examples/ask.py "what are you doing?" --session arm-1
"""

from __future__ import annotations

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default="what are you doing?")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--session", help="name of the robot; not needed when only one is connected")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    client = OpenAI(base_url=args.url, api_key=args.api_key)
    stream = client.chat.completions.create(
        model="oxygen",
        messages=[{"role": "user", "content": args.question}],
        max_tokens=64,
        stream=True,
        extra_body={"session": args.session} if args.session else {},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        details = getattr(chunk, "oxygen", None)
        if details:
            print(f"\n(about frame {details['frame_id']}, {details['age_frames']} frames old)")


if __name__ == "__main__":
    main()
