// Vercel's AI SDK: generateText and streamText with tools.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({ name: "mini-vllm", baseURL: process.argv[2] + "/v1" });
const schema = z.object({
  item: z.string().max(12),
  kind: z.enum(["repair", "return", "question"]),
  urgent: z.boolean(),
  days: z.number().int().min(0).max(30),
});
const asked = {
  model: provider("tiny-llama"),
  prompt: "My toaster sparks. Please mend it, it is urgent.",
  tools: { file: tool({ description: "File a ticket.", inputSchema: schema }) },
  temperature: 0,
  maxOutputTokens: 200,
  maxRetries: 0,
};

// By name: with "required" the tiny model would call without end.
const toolChoice = { type: "tool", toolName: "file" };
const said = await generateText({ ...asked, toolChoice });
console.log("generateText:", JSON.stringify(schema.parse(said.toolCalls[0].input)));
const calls = await streamText({ ...asked, toolChoice }).toolCalls;
console.log("streamText:", JSON.stringify(schema.parse(calls[0].input)));
