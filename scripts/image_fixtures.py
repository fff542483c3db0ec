#!/usr/bin/env python3
"""Make the fixtures of crates/images: pictures in every format, and what the image processors of transformers make of them.

usage: image_fixtures.py [OUT]          OUT is crates/images/tests/fixtures by default
needs: pip install torch torchvision transformers pillow numpy
       (written with transformers 5.23, torchvision 0.29, pillow 13.0; any device, no download)

Pictures are turned upright and put on white with Pillow before the processors see them. References are samples, every
stride-th value, in units of 1/255: processors resize to 8 bits, so that each of their values is a whole number of these.
"""
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor, get_aspect_ratio_preserving_size
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4_unified.image_processing_gemma4_unified import Gemma4UnifiedImageProcessor

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "crates/images/tests/fixtures")
SAMPLES = 900
ORIENTATION = 0x0112
# Pictures that are also compared at the real models' sizes, which takes longer.
FULL_SIZE = [
    "landscape.png", "portrait.png", "tiny.png", "huge.png", "alpha.png", "grey.png", "palette.png", "rotated.png",
    "rotated.jpg",
    "lossy_alpha.webp", "animation.gif",
]
PAN_AND_SCAN = dict(
    do_pan_and_scan=True, pan_and_scan_min_crop_size=256, pan_and_scan_max_num_crops=4,
    pan_and_scan_min_ratio_to_activate=1.2,
)


def draw(width, height, mode="RGB"):
    """A gradient in both directions with shapes on it: smooth parts and hard edges."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1), (x + y) * 255 // max(width + height - 2, 1)]
    image = Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    pen.rectangle([width // 8, height // 6, width // 3, height // 2], fill=(250, 240, 10))
    pen.ellipse([width // 2, height // 3, width * 9 // 10, height * 8 // 9], fill=(5, 20, 90))
    pen.line([0, height - 1, width - 1, 0], fill=(255, 255, 255), width=max(1, min(width, height) // 40))
    return image.convert(mode)


def flat(width, height):
    """Large shapes in few colours: a huge picture in a small file."""
    image = Image.new("P", (width, height), 1)
    image.putpalette([230, 60, 20, 255, 255, 250, 0, 0, 0, 30, 90, 200])
    pen = ImageDraw.Draw(image)
    for ring in range(12):
        inset = ring * min(width, height) // 26
        pen.ellipse([inset, inset, width - inset, height - inset], fill=ring % 4)
    return image


def smooth(width, height):
    """Without edges, where decoders of lossy formats differ in rounding only."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / width * 5 + y / height * 2 + phase) for phase in (0, 1, 2)]
    return Image.fromarray(np.stack([wave * 110 + 128 for wave in waves], axis=-1).astype(np.uint8))


def with_alpha(image, mode):
    width, height = image.size
    alpha = np.tile(np.linspace(0, 255, width).astype(np.uint8), (height, 1))
    image = image.convert(mode[:-1])
    image.putalpha(Image.fromarray(alpha))
    assert image.mode == mode
    return image


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def raw_png(pixels, color, interlaced=False):
    """A PNG of 16-bit or interlaced pixels, which Pillow does not write."""
    height, width = pixels.shape[:2]
    depth = pixels.dtype.itemsize * 8
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for left, top, dx, dy in passes:
        part = pixels[top::dy, left::dx]
        if part.size:
            rows += b"".join(b"\0" + row.astype(pixels.dtype.newbyteorder(">")).tobytes() for row in part)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def bomb_png():
    """A small picture whose text, colour profile and pixels each inflate to 12 MiB."""
    zeros = zlib.compress(bytes(12 << 20), 9)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0))
    metadata = chunk(b"iCCP", b"profile\0\0" + zeros) + chunk(b"zTXt", b"Comment\0\0" + zeros)
    return b"\x89PNG\r\n\x1a\n" + header + metadata + chunk(b"IDAT", zeros) + chunk(b"IEND", b"")


def run_length_bmp(image):
    """A BMP with runs of 8-bit indices."""
    width, height = image.size
    data = b""
    for row in np.array(image)[::-1]:
        starts = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), width]
        for start, end in zip(starts, starts[1:]):
            for at in range(start, end, 255):
                data += bytes([min(255, end - at), row[at]])
        data += b"\0\0"
    data += b"\0\1"
    colors = np.array(image.getpalette()).reshape(-1, 3)
    palette = b"".join(bytes([int(b), int(g), int(r), 0]) for r, g, b in colors)
    offset = 54 + len(palette)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(data), 2835, 2835, len(colors), 0)
    return b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset) + info + palette + data


def write_pictures():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    save = lambda image, name, **more: image.save(FOLDER / name, **more)
    save(draw(400, 300), "landscape.png", optimize=True)
    save(draw(150, 420), "portrait.png", optimize=True)
    save(draw(5, 3), "tiny.png")
    save(flat(3000, 2100), "huge.png", optimize=True)
    save(flat(1100, 300), "wide.png", optimize=True)
    save(with_alpha(draw(160, 120), "RGBA"), "alpha.png", optimize=True)
    save(with_alpha(draw(120, 90), "LA"), "grey_alpha.png", optimize=True)
    save(draw(130, 170, "L"), "grey.png", optimize=True)
    save(draw(90, 60, "1"), "one_bit.png")
    palette = flat(200, 150)
    save(palette, "palette.png", transparency=bytes([0, 255, 128, 255]))
    pixels = np.array(with_alpha(draw(60, 40), "RGBA")).astype(np.uint16)
    (FOLDER / "sixteen_bit.png").write_bytes(raw_png(pixels * 257, 6))
    (FOLDER / "interlaced.png").write_bytes(raw_png(np.array(draw(67, 45)), 2, interlaced=True))

    exif = Image.Exif()
    exif[ORIENTATION] = 6
    save(draw(210, 140), "rotated.png", optimize=True, exif=exif)
    save(smooth(300, 200), "rotated.jpg", quality=92, subsampling=0, exif=exif)
    save(smooth(260, 180), "progressive.jpg", quality=90, subsampling=0, progressive=True)
    save(smooth(260, 180), "subsampled.jpg", quality=90, subsampling=2)
    save(smooth(100, 140).convert("L"), "grey.jpg", quality=90)
    save(smooth(100, 80).convert("CMYK"), "cmyk.jpg", quality=95)
    exif[ORIENTATION] = 8
    save(smooth(240, 160), "lossy.webp", quality=90, exif=exif)
    save(with_alpha(smooth(120, 100), "RGBA"), "lossy_alpha.webp", quality=90)
    save(with_alpha(draw(120, 100), "RGBA"), "lossless.webp", lossless=True, exact=True)
    frames = [smooth(80, 60), draw(80, 60)]
    save(frames[0], "animation.webp", save_all=True, append_images=frames[1:], lossless=True)
    first, second = flat(120, 90), draw(120, 90).quantize(16)
    save(first, "animation.gif", save_all=True, append_images=[second], transparency=2, disposal=2)
    save(draw(70, 50).quantize(64), "still.gif", interlace=1)
    save(draw(61, 43), "rgb.bmp")
    save(draw(60, 40).quantize(32), "palette.bmp")
    save(draw(61, 40, "1"), "one_bit.bmp")
    save(with_alpha(draw(40, 30), "RGBA"), "alpha.bmp")
    for name in ("same.png", "same.bmp", "same.webp"):
        save(draw(24, 18), name, **(dict(lossless=True) if name.endswith("webp") else {}))
    (FOLDER / "run_length.bmp").write_bytes(run_length_bmp(flat(300, 70)))


def write_hostile():
    """Files without reference values: how much memory do they take?"""
    (FOLDER / "bomb.png").write_bytes(bomb_png())
    large = Image.new("RGB", (2000, 1500), (200, 30, 90))
    large.save(FOLDER / "large.jpg", quality=50, subsampling=0, progressive=True)
    large.putalpha(200)
    large.save(FOLDER / "large.webp", lossless=True)
    large.save(FOLDER / "large_lossy.webp", quality=20)


def upright(path):
    """As processors get it: turned by its Exif orientation, transparent parts on white."""
    image = ImageOps.exif_transpose(Image.open(path))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image)
    return image.convert("RGB")


def samples(values):
    """Every stride-th of the values from 0 to 1, in units of 1/255."""
    values = values.reshape(-1).double() * 255
    whole = values.round()
    assert (values - whole).abs().max() < 1e-3, "the processor no longer resizes to 8 bits"
    stride = max(1, len(values) // SAMPLES)
    stride += stride > 1 and stride % 2 == 0  # odd, so that samples fall on all channels and columns
    return dict(stride=stride, count=len(values), values=whole[::stride].int().tolist())


def gemma3(image, size, processor=Gemma3ImageProcessor, **more):
    processor = processor(
        size=dict(height=size, width=size), image_mean=[0.5] * 3, image_std=[0.5] * 3, **more
    )
    result = processor(image, return_tensors="pt")
    return [(pixels + 1) / 2 for pixels in result["pixel_values"]], result["num_crops"]


def gemma4(image, tokens, kind):
    result = kind(max_soft_tokens=tokens)(image, return_tensors="pt")
    positions = result["image_position_ids"][0]
    real = positions[:, 0] >= 0
    return result["pixel_values"][0][real], positions[real], int(result["num_soft_tokens_per_image"][0])


def reference(path):
    image = upright(path)
    entry = dict(file=path.name, width=image.width, height=image.height)
    entry["gemma3"] = []
    for size in (56, 896) if path.name in FULL_SIZE else (56,):
        [pixels], _ = gemma3(image, size)
        entry["gemma3"].append(dict(size=size, pixels=samples(pixels)))
    entry["gemma4"] = []
    cases = [(70, Gemma4ImageProcessor), (280, Gemma4ImageProcessor), (140, Gemma4UnifiedImageProcessor)]
    for tokens, kind in cases if path.name in FULL_SIZE else cases[:1]:
        pixels, positions, soft_tokens = gemma4(image, tokens, kind)
        entry["gemma4"].append(dict(
            max_soft_tokens=tokens, unified=kind is Gemma4UnifiedImageProcessor, soft_tokens=soft_tokens,
            patches=len(positions), last_position=positions[-1].tolist(), middle_position=positions[len(positions) // 2].tolist(),
            pixels=samples(pixels),
        ))
    return entry


def crops(width, height):
    """Left, top, width and height of each crop: the tensor numbers the pixels."""
    numbered = torch.arange(width * height).reshape(1, 1, height, width)
    settings = {key: value for key, value in PAN_AND_SCAN.items() if key != "do_pan_and_scan"}
    found = Gemma3ImageProcessor().pan_and_scan_batched(numbered, **settings)
    corner = lambda crop: int(crop.flatten()[0])
    return [[corner(c) % width, corner(c) // width, c.shape[-1], c.shape[-2]] for c in found]


def pan_and_scan():
    sizes = [
        (1000, 1000), (1199, 1000), (1200, 1000), (640, 480), (512, 400), (511, 400), (1920, 1080), (1080, 1920), (1001, 400),
        (400, 1001), (3000, 300), (300, 3001), (3000, 255), (767, 256), (256, 769), (2560, 1000), (1300, 520), (2500, 1000),
    ]
    image = upright(FOLDER / "wide.png")
    pixels, num_crops = gemma3(image, 56, **PAN_AND_SCAN)
    assert len(pixels) == int(num_crops[0]) + 1 and len(pixels) > 2
    return dict(
        crops=[dict(width=w, height=h, crops=crops(w, h)) for w, h in sizes], file="wide.png", size=56,
        pixels=[samples(image) for image in pixels],
    )


def target_sizes():
    """Gemma 4's sizes: [width, height, budget, target width, target height]."""
    sides = [1, 3, 47, 48, 49, 100, 333, 640, 1000, 1080, 1920, 4032, 9999, 60000]
    rows = []
    for width in sides:
        for height in sides:
            for tokens in (70, 280, 1120):
                target = get_aspect_ratio_preserving_size(height, width, 16, tokens * 9, 3)
                rows.append([width, height, tokens, target[1], target[0]])
    return rows


def compare_backends(path):
    """Pillow's and torchvision's filters are the reference of each other: prints how far apart they are."""
    image = upright(path)
    apart = lambda a, b: float((torch.as_tensor(np.asarray(a)) - torch.as_tensor(np.asarray(b))).abs().max() * 255)
    first = gemma3(image, 896)[0][0], gemma3(image, 896, Gemma3ImageProcessorPil)[0][0]
    second = gemma4(image, 280, Gemma4ImageProcessor)[0], gemma4(image, 280, Gemma4ImageProcessorPil)[0]
    print(f"{path.name}: torchvision and Pillow differ by {apart(*first):.2f} (Gemma 3), {apart(*second):.2f} (Gemma 4) of 255")


def main():
    write_pictures()
    pictures = sorted(FOLDER.iterdir())
    for path in pictures:
        compare_backends(path)
    document = dict(
        pictures=[reference(path) for path in pictures], pan_and_scan=pan_and_scan(), target_sizes=target_sizes(),
    )
    write_hostile()
    (FOLDER / "reference.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
    total = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"{len(pictures)} pictures, {total / 1024:.0f} KiB")
    assert total < 600 * 1024


if __name__ == "__main__":
    main()
