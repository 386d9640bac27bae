// What the controller answers: one question, or the numbers of its states as they come.
let token = "";

export class Refused extends Error {}

export function signIn(value) { token = value; }

async function ask(path, fields = {}) {
  const query = new URLSearchParams(fields).toString();
  const used = token;
  const answer = await fetch(query ? `${path}?${query}` : path, { headers: used ? { Authorization: `Bearer ${used}` } : {} });
  if (answer.status === 401) {
    if (used === token) token = "";
    throw new Refused((await answer.text()).trim());
  }
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer;
}

export const read = async (path, fields) => (await ask(path, fields)).json();
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Calls `told` with each number until the stream ends. Returns { ended, close }.
export async function follow(told) {
  const answer = await ask("/api/events");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let failure = null;
  const ended = (async () => {
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (failure) throw failure;
      if (done) return;
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      const numbers = events.map((event) => /^data: (\d+)$/m.exec(event)).filter(Boolean).map((found) => Number(found[1]));
      if (numbers.length) told(numbers.at(-1));
    }
  })();
  return { ended, close: (error) => { failure ??= error; reader.cancel().catch(() => {}); } };
}
