// The files of a drop, folders opened. A document of a folder is called by its path in it.

const KINDS = /\.(md|markdown|txt|html?|pdf|jsonl|ndjson)$/i;

/** All files that were dropped; of folders only those that can be read in. */
export async function droppedFiles(transfer) {
  // Entries must be taken at once: after the first pause the list is empty.
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, name: file.name }));
  const found = [];
  for (const entry of entries) await collect(entry, "", found);
  return found;
}

async function collect(entry, folder, found) {
  if (entry.isFile) {
    if (folder && !KINDS.test(entry.name)) return;
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    found.push({ file, name: folder + entry.name });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    // A call gives some entries, the last one none.
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return;
    for (const inner of some) await collect(inner, `${folder}${entry.name}/`, found);
  }
}
