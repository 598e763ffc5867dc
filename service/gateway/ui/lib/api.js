// The service's HTTP API. The API key, or the token of who is signed in, is sent only to this service.

import { credential } from "./key.js";

export const ROOT = new URL("..", document.baseURI);

/** An error response; `status` is 0 where none came, 401 where an API key is needed. */
export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const authorization = () => (credential() ? { Authorization: `Bearer ${credential()}` } : {});

/** The error of a response with this status and parsed body; a refused key is told to the page. */
export function refusal(status, told, fallback) {
  // Routes under /v1 report errors in `error`, the others as problem+json.
  const message = told?.error?.message ?? told?.detail ?? told?.title ?? fallback;
  if (status === 401) {
    document.dispatchEvent(new CustomEvent("key-wanted", { detail: { sent: Boolean(credential()), message } }));
  }
  return new ApiError(message, status, told?.error?.code ?? told?.code);
}

export const unreachable = () => new ApiError("the service does not answer", 0, "unreachable");

async function request(path, { method = "GET", body, signal } = {}) {
  const headers = authorization();
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
    throw unreachable();
  }
  if (response.ok) return response;
  throw refusal(response.status, await response.json().catch(() => null), response.statusText);
}

export const getJson = async (path, options) => (await request(path, options)).json();
export const send = (path, method, body) => getJson(path, { method, body });

/** The path of a document; ids may hold slashes. */
export const documentPath = (docId, collection, of = "documents") =>
  `admin/${of}/${docId.split("/").map(encodeURIComponent).join("/")}?${new URLSearchParams({ collection })}`;

/** Calls `on(event, data)` for every server-sent event of a streamed answer. */
export async function stream(path, body, signal, on) {
  const response = await request(path, { method: "POST", body: { ...body, stream: true }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("the connection broke off", 0, "unreachable");
    }
    if (part.done) return;
    held += part.value;
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
