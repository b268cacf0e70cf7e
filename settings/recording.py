"""What is kept of conversations, where and for how long."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from settings.fields import GIGABYTES_MAX, DayLimit, GigabyteLimit, RecordingPlace, Section

SIGNING_STORES = ("s3://", "gs://", "az://")


class RecordingSettings(Section):
    """What is kept of conversations."""

    enabled: bool = Field(True, description="Record sessions.")
    session_retention_days: DayLimit = Field(30, description="Days kept; -1: for ever.")
    max_storage_gb: GigabyteLimit = Field(20, description="Room for recordings, GB; -1: any.")
    min_free_gb: float = Field(
        2, ge=0, le=GIGABYTES_MAX, description="Nothing is recorded with less of the disk free, GB."
    )

    store: RecordingPlace = Field(
        "",
        description="Where complete recordings go: s3://BUCKET/PREFIX, gs://, az:// or file://; "
        "empty: they stay in the data folder.",
    )
    direct: bool = Field(
        False,
        description="Clients fetch sound, pictures and films of the store (s3, gs, az) by signed "
        "URLs of its own, which end after an hour; the store has to allow it to pages.",
    )
    keep_local_h: float = Field(
        24, ge=0, description="A worker keeps what the store has for so long, hours."
    )
    checkpoint_upload_s: float = Field(
        0,
        ge=0,
        description="Upload what a running talk has so often, s; 0: never.",
    )

    @model_validator(mode="after")
    def _check_direct(self) -> Self:
        if self.direct and not self.store.startswith(SIGNING_STORES):
            raise ValueError("direct needs a store that signs URLs: s3://, gs:// or az://")
        return self

    @property
    def summary(self) -> str:
        """A sentence about what is recorded and how long it is kept, for the launcher."""
        if not self.enabled:
            return "Conversations are not recorded."
        days, room = self.session_retention_days, self.max_storage_gb
        limits = [f"for {days} days"] if days > 0 else []
        limits += [f"as long as they fit into {room:g} GB"] if room > 0 else []
        return f"Conversations are recorded and kept {', '.join(limits) or 'for ever'}."
