// Asking the server. Every answer is JSON; a refusal carries its reason in words.

export async function ask(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) {
      if (one !== undefined && one !== null && one !== "") query.append(name, one);
    }
  }
  const text = query.size ? `?${query}` : "";
  const response = await fetch(`/api/${path}${text}`, { headers: { accept: "application/json" } });
  if (response.status === 403) throw new Error("the server was restarted: open the address that it printed");
  const content = await response.json();
  if (!response.ok) throw new Error(content.error || `the server said ${response.status}`);
  return content;
}
