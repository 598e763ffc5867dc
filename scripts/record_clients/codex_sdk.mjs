// Codex's SDK, which runs the command line: node codex_sdk.mjs URL FOLDER
import { Codex } from "@openai/codex-sdk";

const [url, folder] = process.argv.slice(2);
const codex = new Codex({ baseUrl: url, apiKey: "none" });
const thread = codex.startThread({ model: "demo_model", skipGitRepoCheck: true, workingDirectory: folder });
await thread.run("Which animal does Quentin Bruvik keep?").catch((error) => console.error(String(error)));
