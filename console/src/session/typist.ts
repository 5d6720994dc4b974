// Collects the keys for a program, and sends them whenever it asks. A program that does not ask gets no keys.

/** Characters that wait until the program asks. */
export const TYPED_CHARS_MAX = 64 * 1024;

export type SendTyped = (turn: string, text: string) => Promise<unknown>;

export class Typist {
  readonly #send: SendTyped;
  #turn = "";
  #waiting = "";
  /** The question that has no answer yet, by its number, and the last one that got one. */
  #asked = 0;
  #answered = 0;

  constructor(send: SendTyped) {
    this.#send = send;
  }

  /** Whether the text will be sent. What was typed for another turn is never sent to this one. */
  type(turn: string, text: string): boolean {
    this.#follow(turn);
    if (this.#waiting.length + text.length > TYPED_CHARS_MAX) return false;
    this.#waiting += text;
    this.#flush();
    return true;
  }

  /** The turn asks for input. The numbers of questions grow. */
  asked(turn: string, number: number): void {
    this.#follow(turn);
    this.#asked = number;
    this.#flush();
  }

  /** Somebody has answered the question, or there is none. */
  answered(): void {
    this.#answered = this.#asked;
  }

  #follow(turn: string): void {
    if (turn === this.#turn) return;
    this.#turn = turn;
    this.#waiting = "";
    this.answered();
  }

  #flush(): void {
    if (this.#asked <= this.#answered || this.#waiting === "") return;
    const [turn, asked, text] = [this.#turn, this.#asked, this.#waiting];
    this.#answered = asked;
    this.#waiting = "";
    this.#send(turn, text).catch(() => {
      // The question is still open. The next key tries again.
      if (this.#turn !== turn || this.#answered !== asked) return;
      this.#answered = asked - 1;
      this.#waiting = text + this.#waiting;
    });
  }
}
