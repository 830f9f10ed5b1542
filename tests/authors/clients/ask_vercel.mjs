// Vercel's AI SDK: generateObject, and generateText with an output of a schema.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, Output, streamObject } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "mini-vllm",
  baseURL: process.argv[2] + "/v1",
  supportsStructuredOutputs: true,
});
const schema = z.object({
  item: z.string().max(12),
  kind: z.enum(["repair", "return", "question"]),
  urgent: z.boolean(),
  days: z.number().int().min(0).max(30),
});
const asked = {
  model: provider("tiny-llama"),
  prompt: "My toaster sparks. Please mend it, it is urgent.",
  temperature: 0,
  maxOutputTokens: 200,
  maxRetries: 0,
};

const { object } = await generateObject({ ...asked, schema });
console.log("generateObject:", JSON.stringify(schema.parse(object)));
const streamed = streamObject({ ...asked, schema });
for await (const _ of streamed.partialObjectStream);
console.log("streamObject:", JSON.stringify(schema.parse(await streamed.object)));
const choice = await generateObject({ ...asked, output: "enum", enum: ["repair", "return"] });
console.log("an enum:", choice.object);
const said = await generateText({ ...asked, output: Output.object({ schema }) });
console.log("generateText:", JSON.stringify(schema.parse(said.output)));
