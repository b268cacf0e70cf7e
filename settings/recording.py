"""The recording section."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from settings.fields import GIGABYTES_MAX, DayLimit, GigabyteLimit, RecordingPlace, Section

SIGNING_STORES = ("s3://", "gs://", "az://")


class RecordingSettings(Section):
    """Recordings of conversations."""

    enabled: bool = True
    """Record sessions."""
    session_retention_days: DayLimit = 30
    """Days that recordings are kept; -1: forever."""
    max_storage_gb: GigabyteLimit = 20
    """Total size, GB, beyond which the least recently used are deleted; -1: unlimited."""
    min_free_gb: float = Field(2, ge=0, le=GIGABYTES_MAX)
    """Nothing is recorded while less disk space than this is free, GB."""

    store: RecordingPlace = ""
    """Object store for finished recordings: s3://BUCKET/PREFIX, gs://, az:// or file://; empty:
    they stay in data_dir.
    """
    direct: bool = False
    """Redirect media requests to signed URLs of the store (s3, gs, az), valid for an hour; the
    store's CORS rules must allow the pages.
    """
    keep_local_h: float = Field(24, ge=0)
    """Hours that a worker keeps its copy of an uploaded recording."""
    checkpoint_upload_s: float = Field(0, ge=0)
    """Interval for uploading the recording of a running session, s; 0: only when it has ended."""

    @model_validator(mode="after")
    def _check_direct(self) -> Self:
        if self.direct and not self.store.startswith(SIGNING_STORES):
            raise ValueError("direct needs a store that signs URLs: s3://, gs:// or az://")
        return self

    @property
    def summary(self) -> str:
        """A sentence for the launcher on what is recorded and for how long."""
        if not self.enabled:
            return "Conversations are not recorded."
        days, room = self.session_retention_days, self.max_storage_gb
        limits = [f"for {days} days"] if days > 0 else []
        limits += [f"as long as they fit into {room:g} GB"] if room > 0 else []
        return f"Conversations are recorded and kept {', '.join(limits) or 'for ever'}."
