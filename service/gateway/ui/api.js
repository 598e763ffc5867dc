// The service's HTTP API. The API key is kept in this tab's session and sent only to this service.

const ROOT = new URL("..", document.baseURI);
const KEY = "kvstitch.key";

/** An error response; `status` 401 means that an API key is needed. */
export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

async function request(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, ROOT), {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the service does not answer", 0, "unreachable");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  // Routes under /v1 report errors in `error`, the others as problem+json.
  const message = told.error?.message ?? told.detail ?? told.title ?? response.statusText;
  if (response.status === 401) document.dispatchEvent(new CustomEvent("key-wanted"));
  throw new ApiError(message, response.status, told.error?.code ?? told.code);
}

export const getJson = async (path, options) => (await request(path, options)).json();
export const send = (path, method, body) => getJson(path, { method, body });

/** Calls `on(event, data)` for every server-sent event of a streamed answer. */
export async function stream(path, body, signal, on) {
  const response = await request(path, { method: "POST", body: { ...body, stream: true }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const frames = held.split("\n\n");
    held = frames.pop();
    for (const frame of frames) deliver(frame, on);
  }
}

function deliver(frame, on) {
  let event = "message";
  let data = "";
  for (const line of frame.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (!data) return; // a ping
  const parsed = JSON.parse(data);
  if (event === "error") throw new ApiError(parsed.error.message, 200, parsed.error.code);
  on(event, parsed);
}
