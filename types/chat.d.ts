/** Conversations of the chat page: messages, their media, and what happens to them. */

import type { AnswerStatus, ContentItem, Figures, MediaFacts, Voice } from "../static/turnbased/conversation.js";
import type { MediaKind } from "../static/turnbased/attachments.js";

export type MediaPart = {
  type: "audio" | "image" | "video";
  data: string; // Base64: of float32 samples at 16 kHz for sound, else of the file
  mimeType: string; // of the file `data` holds; "" for sound
  name: string; // for people; "" for what was recorded here
  durationS?: number;
  widthPx?: number;
  heightPx?: number;
  poster?: string; // small JPEG of a video as Base64
};

export type MediaLimits = {
  audioMaxS: number;
  videoMaxS: number;
  imageMaxBytes: number;
  imageMaxSidePx: number;
  imageMaxPixels: number;
  videoMaxBytes: number;
  requestMaxBytes: number; // everything that is sent with one question, as Base64
  itemsMax: number; // attachments of one message
};

/** What is known of a file; the more the better */
export type FileFacts = {
  kind: MediaKind;
  sizeBytes: number; // of the file
  durationS?: number;
  widthPx?: number;
  heightPx?: number;
};

export type MessageExtra = {
  media?: readonly MediaFacts[]; // in the order of the items
  names?: readonly string[]; // of the items of the instructions
  figures?: Figures;
  voice?: Voice | null; // of an answer
  problem?: {code: string; message: string} | null; // why an answer failed
  transcript?: string; // of a question's audio
};

/** One message. What a page shows beside it (a file's name, a player's sound) goes into `extra`, which never goes over the wire. */
export type ChatMessage = {
  id: string; // Stays the same while it is edited.
  role: "system" | "user" | "assistant";
  items: readonly ContentItem[];
  status: AnswerStatus; // Of an answer; `done` for all others.
  createdAtMs: number; // Since 1970.
  extra: Readonly<MessageExtra>;
};

export type Conversation = {
  messages: readonly ChatMessage[];
  nextNumber: number; // For ids; never used twice.
};

export type Head = {
  id: string;
  title: string;
  hasOwnTitle?: boolean; // it was chosen, not made of the first question
  createdAtMs: number;
  updatedAtMs: number;
  sizeBytes: number;
  messageCount: number;
};

export type ChatSessionEvents = {
  change: null; // the conversation, its head or the turn changed
  heads: null; // the list of kept conversations changed
  opened: null; // another conversation is shown
  sound: { audioBase64: string; isFirst: boolean }; // a piece of the answer's voice
  answered: { message: ChatMessage; isPlayed: boolean };
  warning: { code: string; message: string };
  problem: { code: string }; // nothing can be kept
};

export type MessageActions = {
  askInstead: (id: string, text: string, media: readonly MediaPart[]) => void;
  answerAgain: (id: string) => void;
  remove: (id: string) => void;
};

/** What one message depends on */
export type MessageState = {
  message: ChatMessage;
  phase: string | null; // of the answer that is coming
  isBusy: boolean; // some answer is coming
  isUnanswered: boolean; // it is the last, and no reply is under way
};
