// Shows /api/openapi.json: every route with its parameters, its request, its answers. Text only.

const DESCRIPTION = "/api/openapi.json";

/** An element with text or children. */
function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

/** The name of a schema, or its type in words. */
function schemaWords(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.items) return `list of ${schemaWords(schema.items)}`;
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map(schemaWords).join(" or ");
  return schema.type ?? "anything";
}

/** A table of a schema's fields. */
function fieldTable(schema) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const kind = schemaWords(field) + (required.has(name) ? "" : " (optional)");
    return element("tr", element("th", element("code", name)), element("td", kind),
      element("td", field.description ?? ""));
  });
  return element("table", ...rows);
}

/** The schema of a body or an answer, its fields included if it has a name. */
function contentParts(content, schemas) {
  return Object.entries(content ?? {}).flatMap(([mediaType, { schema }]) => {
    const words = schemaWords(schema);
    const known = schemas[words];
    const line = element("p", `${words} `, element("code", mediaType));
    return known?.properties ? [line, fieldTable(known)] : [line];
  });
}

/** Everything about one route. */
function routeDetails(method, path, route, schemas) {
  const details = element("details",
    element("summary", element("code", `${method.toUpperCase()} ${path}`), ` ${route.description ?? ""}`));
  for (const parameter of route.parameters ?? []) {
    details.append(element("p", element("code", parameter.name), ` in ${parameter.in}: `,
      schemaWords(parameter.schema)));
  }
  if (route.requestBody) {
    details.append(element("h4", "Request"), ...contentParts(route.requestBody.content, schemas));
  }
  for (const [status, answer] of Object.entries(route.responses ?? {})) {
    details.append(element("h4", `${status} ${answer.description ?? ""}`));
    if (status.startsWith("2")) details.append(...contentParts(answer.content, schemas));
  }
  return details;
}

async function show() {
  const about = document.getElementById("about");
  const answer = await fetch(DESCRIPTION);
  if (!answer.ok) {
    about.textContent = `The description cannot be read: HTTP ${answer.status}.`;
    return;
  }
  const { info, paths, components } = await answer.json();
  about.textContent = info.description;
  const byTag = new Map();
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, route] of Object.entries(methods)) {
      const tag = route.tags?.[0] ?? "other";
      if (!byTag.has(tag)) byTag.set(tag, []);
      byTag.get(tag).push(routeDetails(method, path, route, components.schemas));
    }
  }
  for (const [tag, routes] of byTag) {
    document.getElementById("routes").append(element("h2", tag), ...routes);
  }
}

show();
