"""Stock of a small shop: what lies on the shelves, and what must be ordered."""

from dataclasses import dataclass, field


@dataclass
class Item:
    name: str
    price: float
    count: int = 0
    minimum: int = 2


@dataclass
class Shelf:
    label: str
    items: list[Item] = field(default_factory=list)

    def add(self, item: Item) -> None:
        known = calc(self, item.name)
        if known is None:
            self.items.append(item)
        else:
            known.count += item.count

    def take(self, name: str, count: int) -> int:
        item = calc(self, name)
        if item is None:
            return 0
        taken = min(item.count, count)
        item.count -= taken
        return taken


def calc(shelf: Shelf, name: str) -> Item | None:
    for item in shelf.items:
        if item.name == name:
            return item
    return None


def value(shelf: Shelf) -> float:
    return sum(item.price * item.count for item in shelf.items)


def missing(shelf: Shelf) -> list[str]:
    return [item.name for item in shelf.items if item.count < item.minimum]


def main() -> None:
    shelf = Shelf("tea")
    shelf.add(Item("assam", 4.5, count=10))
    shelf.add(Item("sencha", 6.0, count=3))
    shelf.take("assam", 9)
    print(f"{shelf.label}: {value(shelf):.2f}")
    for name in missing(shelf):
        item = calc(shelf, name)
        print(f"order {item.minimum - item.count} of {name}")


if __name__ == "__main__":
    main()
