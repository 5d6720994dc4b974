// The address of a picture, for an image element.

/** Types of pictures that a browser never shows as a document. */
const RASTER = /^image\/(?:png|jpeg|gif|webp|avif|bmp|x-icon)$/;

/**
 * A picture of another type can have scripts, which run when a person opens its address in a window. A `blob:` address
 * has the origin of the console there; a `data:` address has none.
 */
export function pictureUrl(picture: Blob): Promise<string> {
  if (RASTER.test(picture.type)) return Promise.resolve(URL.createObjectURL(picture));
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(String(reader.result));
    reader.onerror = () => fail(reader.error ?? new Error("The picture cannot be read."));
    reader.readAsDataURL(picture);
  });
}
