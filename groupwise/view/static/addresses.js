// Addresses of pages and of data.

/** The address of a problem's page. Its name goes as JSON, which can hold what an address cannot. */
export function problemAddress(run, name) {
  return `#/problem/${run}?id=${encodeURIComponent(JSON.stringify(name))}`;
}

/** The name in such an address; empty where there is none. */
export function problemIn(query) {
  try {
    return String(JSON.parse(query.get("id")));
  } catch {
    return "";
  }
}

/** Where the data of a stored group is. */
export function groupData(run, step, group) {
  return `runs/${run}/steps/${step}/groups/${group}`;
}
