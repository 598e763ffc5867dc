// openai for Node: chats, streams, tools, structured output and the Responses API.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const question = "Which animal does Quentin Bruvik keep?";
const messages = [{ role: "user", content: question }];
const model = "demo_model";
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const Keeps = z.object({ animal: z.enum(["goat", "cow"]) });
const out = {};

out.models = (await client.models.list()).data.map((one) => one.id).includes(model);
out.chat = (await client.chat.completions.create({ model, messages })).choices[0].message.content;
out.stream = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  out.stream += chunk.choices[0]?.delta?.content ?? "";
}
const runner = client.chat.completions.stream({ model, messages, tools, tool_choice: "required" });
out.call = (await runner.finalFunctionToolCall()).arguments;
const parsed = await client.chat.completions.parse({
  model, messages, max_tokens: 80, response_format: zodResponseFormat(Keeps, "keeps"),
});
out.parsed = parsed.choices[0].message.parsed.animal;
out.response = (await client.responses.create({ model, input: question })).output_text;
const stream = client.responses.stream({ model, input: question });
out.responseStream = (await stream.finalResponse()).output_text;
const formed = await client.responses.parse({
  model, input: question, text: { format: zodTextFormat(Keeps, "keeps") },
});
out.responseParsed = formed.output_parsed.animal;
console.log(JSON.stringify(out));
