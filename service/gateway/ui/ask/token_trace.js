// What happened to each token: names and counts. Only this file turns runs into tokens.

export const SOURCES = {
  memory: { name: "RAM", about: "reused from memory" },
  ssd: { name: "SSD", about: "reused from SSD" },
  redis: { name: "Redis", about: "reused from Redis" },
  s3: { name: "S3", about: "reused from S3" },
  recomputed: { name: "Recomputed", about: "stored, computed anew" },
  cold: { name: "Cold", about: "computed: nothing stored was used" },
  question: { name: "Question", about: "computed: no cache can hold the question" },
};

/** One entry per token of a segment. */
export function tokensOf(segment, { layers, kv_heads: heads }) {
  const everywhere = layers * heads;
  const points = [...segment.text]; // `starts` counts code points
  const out = [];
  for (const run of segment.runs) {
    for (let i = 0; i < run.tokens; i += 1) {
      const at = out.length;
      out.push({
        at,
        text: points.slice(segment.starts[at], segment.starts[at + 1] ?? points.length).join(""),
        source: run.source,
        computed: run.computed_layers,
        kept: run.entries / everywhere,
        score: segment.scores?.[at] ?? null,
      });
    }
  }
  return out;
}

/** Tokens by source, evicted ones, the mean share of KV kept. */
export function countsOf(tokens) {
  const counts = { tokens: tokens.length, evicted: 0, kept: 0 };
  for (const source of Object.keys(SOURCES)) counts[source] = 0;
  for (const token of tokens) {
    counts[token.source] += 1;
    counts.evicted += token.kept === 0;
    counts.kept += token.kept / tokens.length;
  }
  return counts;
}

/** A segment in words: "50 RAM, 2 recomputed, 5 evicted". */
export function inWords(counts) {
  const parts = Object.entries(SOURCES)
    .filter(([source]) => counts[source])
    .map(([source, { name }]) => `${counts[source]} ${name === "RAM" || name === "SSD" || name === "Redis" ? name : name.toLowerCase()}`);
  if (counts.evicted) parts.push(`${counts.evicted} evicted`);
  return parts.join(", ");
}
