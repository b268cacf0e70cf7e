"""What is kept of conversations, where and for how long."""

from __future__ import annotations

from pydantic import Field

from settings.fields import GIGABYTES_MAX, DayLimit, GigabyteLimit, RecordingPlace, Section


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
    keep_local_h: float = Field(
        24, ge=0, description="A worker keeps what the store has for so long, hours."
    )
    checkpoint_upload_s: float = Field(
        0,
        ge=0,
        description="Upload what a running talk has so often, s; 0: never.",
    )

    @property
    def summary(self) -> str:
        """A sentence about what is recorded and how long it is kept, for the launcher."""
        if not self.enabled:
            return "Conversations are not recorded."
        days, room = self.session_retention_days, self.max_storage_gb
        limits = [f"for {days} days"] if days > 0 else []
        limits += [f"as long as they fit into {room:g} GB"] if room > 0 else []
        return f"Conversations are recorded and kept {', '.join(limits) or 'for ever'}."
