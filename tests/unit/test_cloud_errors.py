"""Errors of the clouds' own libraries: some mean that credentials are missing, others that a server is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import CredentialUnavailableError
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from exactsink.toolkit.storage.azure_files import AzureFiles
from exactsink.toolkit.storage.gcs_files import GcsFiles


@pytest.mark.parametrize(
    ("library", "error", "status"),
    [
        (AzureFiles, CredentialUnavailableError("no identity"), 401),
        (AzureFiles, ClientAuthenticationError("the identity ended"), 401),
        (GcsFiles, DefaultCredentialsError("none"), 401),
        (GcsFiles, RefreshError("invalid_grant"), 401),
        (GcsFiles, RefreshError(TransportError("the metadata server is away")), 0),
        (GcsFiles, RefreshError("try later", retryable=True), 0),
    ],
)
def test_an_identity_is_missing_or_its_server_is_away(library: Any, error: Exception, status: int) -> None:
    assert library().said(error) == (status, "")


def test_a_login_to_google_needs_no_project_and_a_missing_one_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    key = tmp_path / "key.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    google: Any = GcsFiles(skip_instance_cache=True)
    with pytest.raises(PermissionError, match="was not found"):
        google.client("bucket")
    key.write_text('{"type": "authorized_user", "client_id": "id", "client_secret": "no", "refresh_token": "no"}')
    assert google.client("bucket").name == "bucket"
