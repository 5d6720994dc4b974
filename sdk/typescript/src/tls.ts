// TLS to a node: which certificates are trusted, and what the failures of a handshake mean. The certificate of a node is
// always verified.

import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";

import { asError, WindlassError } from "./errors.js";

/** What the TLS library gets for each connection. */
interface TlsSettings {
  minVersion: "TLSv1.2";
  ALPNProtocols: string[];
  /** Explicit, so that no variable of the environment turns the verification off. */
  rejectUnauthorized: true;
  ca?: string[];
  allowPartialTrustChain?: boolean;
}

/** How a client speaks TLS to its node. */
export interface NodeTls {
  /** The PEM file of the only trusted authorities; undefined: those that Node.js trusts. */
  readonly caFile: string | undefined;
  readonly options: TlsSettings;
}

/** One certificate in a PEM file. */
const CERTIFICATE = /-----BEGIN CERTIFICATE-----[\s\S]*?-----END CERTIFICATE-----/g;

const UNKNOWN_AUTHORITY = [
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
];

/** Other refusals of a certificate. */
const INVALID = [
  "CERT_SIGNATURE_FAILURE",
  "CERT_REVOKED",
  "INVALID_CA",
  "PATH_LENGTH_EXCEEDED",
  "INVALID_PURPOSE",
  "CERT_UNTRUSTED",
  "CERT_REJECTED",
  "CERT_CHAIN_TOO_LONG",
];

const CA_REMEDY =
  "set WINDLASS_CA, or `ca`, to a PEM file with the certificate of the authority that signed the node's";

/** Reads the file of the authorities, if one is named. */
export function loadTls(caFile: string | undefined): NodeTls {
  const options: TlsSettings = {
    minVersion: "TLSv1.2",
    ALPNProtocols: ["http/1.1"],
    rejectUnauthorized: true,
  };
  if (caFile === undefined) return { caFile, options };
  let ca: string[];
  try {
    ca = readFileSync(caFile, "utf8").match(CERTIFICATE) ?? [];
    if (ca.length === 0) throw new Error("it has no certificate in PEM form");
    // The TLS library ignores a certificate that it cannot parse.
    for (const certificate of ca) new X509Certificate(certificate);
  } catch (thrown) {
    const message = `the file ${caFile} of WINDLASS_CA cannot be used: ${asError(thrown).message}`;
    throw new WindlassError("bad_ca", message, CA_REMEDY, { cause: thrown });
  }
  // Every certificate of the file is trusted, also one that another authority has signed.
  return { caFile, options: { ...options, ca, allowPartialTrustChain: true } };
}

/** What a fault of a connection to `node` means, if TLS or its absence is the cause. A later attempt fails as well. */
export function tlsFailure(
  fault: NodeJS.ErrnoException,
  node: string,
  tls: NodeTls | undefined,
): WindlassError | undefined {
  const code = fault.code ?? "";
  if (tls === undefined) return isAlert(fault) ? answeredInTls(node, fault) : undefined;
  const why = refusalOf(code, tls, fault);
  if (why !== undefined) {
    const message = `the certificate of the node at ${node} ${why.said}`;
    return new WindlassError("bad_certificate", message, why.remedy, { cause: fault });
  }
  if (code !== "EPROTO" && !code.startsWith("ERR_SSL_")) return undefined;
  if (/wrong.version.number|packet.length.too.long|http.request|record.layer.failure/i.test(`${code} ${fault.message}`)) {
    return new WindlassError(
      "wrong_scheme",
      `the node at ${node} speaks HTTP without TLS, and the URL begins with https://`,
      `use the URL http://${node}, or start the node with a certificate`,
      { cause: fault },
    );
  }
  return new WindlassError(
    "tls_failed",
    `the TLS handshake with the node at ${node} failed: ${fault.message}`,
    "check that a node with a certificate listens there, and that both sides support TLS 1.2 or 1.3",
    { cause: fault },
  );
}

/** Why a certificate is refused; undefined if it is not. */
function refusalOf(
  code: string,
  tls: NodeTls,
  fault: Error,
): { said: string; remedy: string } | undefined {
  if (UNKNOWN_AUTHORITY.includes(code)) {
    const trusted = tls.caFile === undefined ? "Node.js trusts" : `${tls.caFile} (WINDLASS_CA) names`;
    return { said: `is not from an authority that ${trusted}`, remedy: CA_REMEDY };
  }
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") {
    return {
      said: `is for another name: ${fault.message}`,
      remedy: "use a name of the certificate in the URL, or add this name to the node's certificate",
    };
  }
  if (code === "CERT_HAS_EXPIRED") {
    return { said: "has expired", remedy: "renew the certificate of the node, then restart the node" };
  }
  if (code === "CERT_NOT_YET_VALID") {
    return {
      said: "is not valid yet",
      remedy: "compare the clocks of this machine and of the node's machine",
    };
  }
  if (!INVALID.includes(code)) return undefined;
  return {
    said: `is not valid: ${fault.message}`,
    remedy: "give the node a valid certificate, then restart the node",
  };
}

/** Whether the answer that could not be parsed begins as a refusal in TLS: a record with an alert. */
function isAlert(fault: NodeJS.ErrnoException & { rawPacket?: Uint8Array }): boolean {
  return fault.rawPacket?.[0] === 0x15 && fault.rawPacket[1] === 0x03;
}

function answeredInTls(node: string, cause: Error): WindlassError {
  return new WindlassError(
    "wrong_scheme",
    `the node at ${node} speaks HTTPS, and the URL begins with http://`,
    `use the URL https://${node}`,
    { cause },
  );
}
