// Sends one file as it is. XMLHttpRequest and not fetch, because only it tells how much has gone.

import { ROOT, authorization, refusal, unreachable } from "../lib/api.js";

/** The job of an accepted file; `progress(share)` is called on the way, from 0 to 1. */
export function upload(file, name, collection, readers, progress) {
  const lines = /\.(jsonl|ndjson)$/i.test(name);
  const url = new URL("admin/precompute", ROOT);
  if (readers) url.searchParams.set("readers", readers);
  let body = file;
  if (lines) url.searchParams.set("collection", collection);
  else {
    body = new FormData();
    body.append("collection", collection);
    body.append("file", file, name);
  }
  const request = new XMLHttpRequest();
  request.open("POST", url);
  for (const [header, value] of Object.entries(authorization())) request.setRequestHeader(header, value);
  if (lines) request.setRequestHeader("Content-Type", "application/x-ndjson");
  return new Promise((resolve, reject) => {
    request.upload.addEventListener("progress", ({ loaded, total }) => progress(total ? loaded / total : 0));
    request.addEventListener("error", () => reject(unreachable()));
    request.addEventListener("load", () => {
      let told = null;
      try {
        told = JSON.parse(request.responseText);
      } catch {
        // a proxy's page, perhaps
      }
      if (request.status === 202) resolve(told);
      else reject(refusal(request.status, told, request.statusText));
    });
    request.send(body);
  });
}
