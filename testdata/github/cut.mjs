// Cuts GitHub's own descriptions of its two APIs down to what package internal/forge/github asks of them:
//
//   npm install --prefix /tmp/github @octokit/openapi@23.0.2 @octokit/graphql-schema@15.26.1 graphql@16
//   node testdata/github/cut.mjs /tmp/github/node_modules
//
// Writes openapi.json and graphql.json beside itself. A request of internal/forge/github/graphql that does not fit the whole
// schema is an error here.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const requests = join(here, "../../internal/forge/github/graphql");
const modules = resolve(process.argv[2]);
const require = createRequire(join(modules, "x.js"));
const repo = "/repos/{owner}/{repo}";

const operations = {
  [`${repo}/issues`]: ["get", "post"],
  [`${repo}/issues/{issue_number}`]: ["patch"],
  [`${repo}/issues/{issue_number}/comments`]: ["post"],
  [`${repo}/issues/{issue_number}/labels`]: ["post"],
  [`${repo}/pulls`]: ["get", "post"],
  [`${repo}/pulls/{pull_number}`]: ["patch"],
  [`${repo}/git/ref/{ref}`]: ["get"],
  [`${repo}/git/trees/{tree_sha}`]: ["get"],
  [`${repo}/compare/{basehead}`]: ["get"],
};

// bare leaves out what no validation looks at.
function bare(value, inProperties = false) {
  if (Array.isArray(value)) return value.map((v) => bare(v));
  if (value === null || typeof value !== "object") return value;
  const kept = {};
  for (const [key, v] of Object.entries(value)) {
    const prose = ["example", "examples", "externalDocs", "tags", "title", "default"].includes(key) || key.startsWith("x-");
    if (!inProperties && (prose || key === "description")) continue;
    kept[key] = bare(v, key === "properties" && !inProperties);
  }
  return kept;
}

function cutOpenAPI() {
  const whole = JSON.parse(readFileSync(join(modules, "@octokit/openapi/generated/api.github.com.json")));
  const cut = { openapi: whole.openapi, info: whole.info, servers: whole.servers, paths: {}, components: {} };
  for (const [path, methods] of Object.entries(operations)) {
    cut.paths[path] = {};
    for (const method of methods) cut.paths[path][method] = bare(whole.paths[path][method]);
  }
  const todo = [cut.paths];
  while (todo.length > 0) {
    const text = JSON.stringify(todo.pop());
    for (const [, kind, name] of text.matchAll(/"#\/components\/([^/"]+)\/([^"]+)"/g)) {
      cut.components[kind] ??= {};
      if (cut.components[kind][name]) continue;
      cut.components[kind][name] = bare(whole.components[kind][name]);
      todo.push(cut.components[kind][name]);
    }
  }
  // What must be there, though no validation reads it.
  for (const methods of Object.values(cut.paths)) {
    for (const operation of Object.values(methods)) {
      for (const response of Object.values(operation.responses)) if (!response.$ref) response.description = "";
    }
  }
  for (const response of Object.values(cut.components.responses ?? {})) response.description = "";
  return cut;
}

function cutGraphQL() {
  const g = require("graphql");
  const schema = g.buildSchema(readFileSync(join(modules, "@octokit/graphql-schema/schema.graphql"), "utf8"), {
    assumeValidSDL: true, // the published file defines two fields twice
  });
  const cut = { operations: {}, inputs: {} };
  const addInput = (type) => {
    const named = g.getNamedType(type);
    if (!g.isInputObjectType(named) || cut.inputs[named.name]) return;
    cut.inputs[named.name] = {};
    for (const field of Object.values(named.getFields())) {
      cut.inputs[named.name][field.name] = String(field.type);
      addInput(field.type);
    }
  };
  const shape = (type, selections) => {
    if (!selections) return String(type);
    const fields = {};
    for (const s of selections.selections) {
      fields[s.name.value] = shape(g.getNamedType(type).getFields()[s.name.value].type, s.selectionSet);
    }
    return { type: String(type), fields };
  };
  for (const file of readdirSync(requests).sort()) {
    const query = readFileSync(join(requests, file), "utf8");
    const document = g.parse(query);
    const errors = g.validate(schema, document);
    if (errors.length > 0) throw new Error(`${file}: ${errors.join("; ")}`);
    const [operation] = document.definitions;
    const variables = {};
    for (const v of operation.variableDefinitions) {
      variables[v.variable.name.value] = g.print(v.type);
      addInput(g.typeFromAST(schema, v.type));
    }
    const root = schema.getRootType(operation.operation);
    cut.operations[file] = { query, variables, data: shape(root, operation.selectionSet) };
  }
  return cut;
}

writeFileSync(join(here, "openapi.json"), JSON.stringify(cutOpenAPI(), null, 1) + "\n");
writeFileSync(join(here, "graphql.json"), JSON.stringify(cutGraphQL(), null, 1) + "\n");
