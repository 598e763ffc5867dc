// A certified OpenID provider with its own pages for signing in and consent. What a test wants to be
// otherwise it says by POST /test: {"audience", "ttl", "keys"}. Arguments: port, redirect URIs.

import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";

import Provider from "oidc-provider";

const [port, ...places] = process.argv.slice(2);
const GROUPS = { anna: ["hr"], ben: ["board"], olga: ["all-documents"] };
const wanted = { audience: "kvstitch", ttl: 600 };
let generation = 0;

function newKey() {
  generation += 1;
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), kid: `key-${generation}`, alg: "RS256", use: "sig" };
}

const client = {
  redirect_uris: places,
  post_logout_redirect_uris: places,
  response_types: ["code"],
  grant_types: ["authorization_code"],
  application_type: "native", // whose places may be on this machine
};

function provider() {
  return new Provider(`http://127.0.0.1:${port}`, {
    jwks: { keys: [newKey()] },
    clients: [
      { ...client, client_id: "public", token_endpoint_auth_method: "none" },
      { ...client, client_id: "confidential", client_secret: "s3cret&:/ of+tests" },
    ],
    pkce: { required: () => true },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, name: `${id[0].toUpperCase()}${id.slice(1)} Example`, groups: GROUPS[id] ?? [] }),
    }),
    claims: { openid: ["sub"], profile: ["name", "groups"] },
    scopes: ["openid", "generate", "ingest", "admin", "metrics"],
    conformIdTokenClaims: false,
    cookies: { keys: ["of tests only"] },
    extraTokenClaims: (_, token) => ({ groups: GROUPS[token.accountId] ?? [] }),
    features: {
      registration: { enabled: true }, // as clients of MCP register themselves
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({
          scope: "generate ingest admin metrics",
          audience: wanted.audience,
          accessTokenTTL: wanted.ttl,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "RS256" } },
        }),
      },
    },
    ttl: { Session: 3600, Interaction: 3600, Grant: 3600, IdToken: 600, AuthorizationCode: 60, AccessToken: () => wanted.ttl },
  });
}

let handler = provider().callback();

createServer(async (request, response) => {
  if (request.url !== "/test") return handler(request, response);
  let body = "";
  for await (const part of request) body += part;
  const { keys, ...others } = JSON.parse(body);
  Object.assign(wanted, others);
  if (keys === "new") handler = provider().callback(); // what is signed from now on is by another key
  response.end();
}).listen(Number(port), "127.0.0.1", () => console.log("listening"));
