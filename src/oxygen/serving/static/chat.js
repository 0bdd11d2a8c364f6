// The chat box: the same OpenAI-compatible door that any other program would use, streamed.
function add(list, className, words) {
  const item = document.createElement("li"), body = document.createElement("div"), meta = document.createElement("div");
  item.className = className;
  body.className = "words";
  meta.className = "meta";
  body.textContent = words;
  item.append(body, meta);
  list.append(item);
  list.scrollTop = list.scrollHeight;
  return { item, body, meta };
}

// How old a text was when it was complete: the robot has moved on since the frame that it describes.
export function age({ age_s, age_frames }) {
  const passed = age_s < 1 ? `${Math.round(1000 * age_s)} ms` : `${age_s.toFixed(1)} s`;
  const frames = age_frames === 0 ? "" : `, ${age_frames} newer frame${age_frames === 1 ? "" : "s"}`;
  return `done ${passed} later${frames}`;
}

export async function ask(form, input, list, session) {
  const question = input.value.trim();
  if (!question) return;
  const button = form.querySelector("button");
  input.value = "";
  button.disabled = true;
  add(list, "person", question);
  const answer = add(list, "robot live", "");
  try {
    const body = { model: "", session, stream: true, max_tokens: 64, messages: [{ role: "user", content: question }] };
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response.body)) take(event, answer, list);
  } catch (error) {
    answer.item.className = "robot bad";
    answer.body.textContent = String(error.message || error);
  }
  answer.item.classList.remove("live");
  button.disabled = false;
  input.focus();
}

function take(event, answer, list) {
  if (event.error) throw new Error(event.error.message);
  const choice = event.choices[0];
  if (choice && choice.delta.content) answer.body.textContent += choice.delta.content;
  if (event.oxygen) {
    const o = event.oxygen;
    answer.meta.textContent = `about frame ${o.frame_id} · ${age(o)}${o.finish_reason === "stop" ? "" : ` · ended: ${o.finish_reason}`}`;
  }
  list.scrollTop = list.scrollHeight;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
