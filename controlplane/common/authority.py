"""A private certificate authority in a folder: it makes and renews certificates, and signs those that requests
ask for."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane.common.access import Caller, Revoked
from controlplane.common.rpc.tls import FOLDER_FILES, ORGANISATION
from controlplane.common.whole_file import replace_file

# Days for which the certificates of agents, operators, switches and controllers are valid by default.
DAYS = 90
AUTHORITY_DAYS = 3650
"""Days for which an authority is valid, or ten times the days of its first certificates where that is longer."""
MOST_DAYS = 36_500
"""Most days for which a certificate may be valid: its authority is for ten times as many, and dates end with the year
9999."""
PREDATED = datetime.timedelta(hours=1)
"""Time by which the validity of a certificate begins before it is made: the clocks of the machines that check the
certificate may differ from ours by as much."""
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


class CertificatesError(ValueError):
    """A certificate cannot be made; the message says why."""


@dataclass(frozen=True)
class Authority:
    """A private certificate authority in a folder."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    days: float = DAYS

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @classmethod
    def of(cls, folder: Path, name: str, days: float) -> Authority:
        """Load the authority in `folder`, or make one. Raise CertificatesError where it is broken or has expired."""
        files = folder / FOLDER_FILES["certificate"], folder / FOLDER_FILES["key"]
        if all(file.is_file() for file in files):
            try:
                certificate = x509.load_pem_x509_certificate(files[0].read_bytes())
                key = serialization.load_pem_private_key(files[1].read_bytes(), password=None)
            except ValueError as error:
                raise CertificatesError(f"{folder} does not hold an authority: {error}") from None
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise CertificatesError(f"{folder}: its key is not one that this command made")
            if certificate.not_valid_after_utc <= now():
                raise CertificatesError(f"the authority in {folder} has expired: begin with a new folder")
            return cls(certificate, key, days)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        usage = x509.KeyUsage(
            **dict.fromkeys(
                ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
                False,
            ),
            key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = (
            _builder(
                subject, subject, key.public_key(), now() + datetime.timedelta(days=max(AUTHORITY_DAYS, 10 * days))
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        made = cls(builder.sign(key, hashes.SHA256()), key, days)
        replace_file(files[0], made.pem, 0o644)
        replace_file(files[1], _pem(key), 0o600)
        return made

    def issue(
        self,
        folder: Path,
        caller: Caller,
        uses: Sequence[x509.ObjectIdentifier],
        names: Sequence[str] = (),
        begin: datetime.datetime | None = None,
    ) -> bool:
        """Write certificate.pem, key.pem, and this authority's authority.pem. Return False where they exist already.

        Validity begins at `begin` (None: `PREDATED` before now).
        """
        if all((folder / FOLDER_FILES[part]).is_file() for part in ("certificate", "key")):
            return False
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(caller)[:64])])
        others = [_general_name(name) for name in names]
        self._write(
            folder,
            subject,
            x509.ExtendedKeyUsage(uses),
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(caller.uri), *others]),
            begin=begin,
        )
        return True

    def renew(self, folder: Path, names: Sequence[str] = (), begin: datetime.datetime | None = None) -> None:
        """Replace key and certificate in `folder` by new ones for the same subject, valid from `begin` as in `issue`.

        `names` are host names and addresses that are added to those of the old certificate. Raise CertificatesError if
        the old one is not of this authority.
        """
        file = folder / FOLDER_FILES["certificate"]
        try:
            before = x509.load_pem_x509_certificate(file.read_bytes())
            uses = before.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            there = list(before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except (ValueError, x509.ExtensionNotFound) as error:
            raise CertificatesError(f"{file} is not one that this command made: {error}") from None
        if before.issuer != self.certificate.subject:
            raise CertificatesError(f"{file} is another authority's: delete its folder, and it is made anew")
        there += [name for name in map(_general_name, names) if name not in there]
        asks = (folder / FOLDER_FILES["authority"]).is_file()
        self._write(folder, before.subject, uses, x509.SubjectAlternativeName(there), begin=begin, asks=asks)

    def _write(
        self,
        folder: Path,
        subject: x509.Name,
        uses: x509.ExtendedKeyUsage,
        names: x509.SubjectAlternativeName,
        *,
        begin: datetime.datetime | None,
        asks: bool = True,
    ) -> None:
        """Write key and certificate, and, with `asks`, authority.pem, by which a server asks for certificates."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = self._signed(subject, key.public_key(), datetime.timedelta(days=self.days), uses, names, begin=begin)
        if asks:
            replace_file(folder / FOLDER_FILES["authority"], self.pem, 0o644)
        replace_file(folder / FOLDER_FILES["certificate"], pem, 0o644)
        replace_file(folder / FOLDER_FILES["key"], _pem(key), 0o600)

    def next_of(self, caller: Caller, began: datetime.datetime) -> tuple[bytes, bytes]:
        """Return the next certificate of a node, operator, tenant or viewer and its key (PEM), as `issue` writes them.

        Its validity begins when that of the present one `began`, so that a revocation of the present one concerns all
        that were renewed from it, also those made between the revocation and its arrival at the controller.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(caller)[:64])])
        uses = x509.ExtendedKeyUsage((CLIENT, SERVER) if caller.role == "node" else (CLIENT,))
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(caller.uri)])
        lifetime = datetime.timedelta(days=self.days)
        return self._signed(subject, key.public_key(), lifetime, uses, names, begin=began), _pem(key)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: datetime.timedelta,
        uses: x509.ExtendedKeyUsage, names: x509.SubjectAlternativeName, *, begin: datetime.datetime | None = None,
    ) -> bytes:  # fmt: skip
        end = min(now() + lifetime, self.certificate.not_valid_after_utc)
        builder = (
            _builder(subject, self.certificate.subject, key, end, begin)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(uses, critical=False)
            .add_extension(names, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(_PEM)


_PEM = serialization.Encoding.PEM


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def begin_of_new(revoked: Revoked, holder: Caller) -> datetime.datetime:
    """Return when the validity of a holder's new certificate begins: no earlier revocation concerns it."""
    until, usual = revoked.until(holder), now() - PREDATED
    return usual if until is None else max(usual, until + datetime.timedelta(seconds=1))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    end: datetime.datetime,
    begin: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin or now() - PREDATED)
        .not_valid_after(end)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise CertificatesError(f"{name!r} cannot be a name in a certificate: letters, digits, - and . only") from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
